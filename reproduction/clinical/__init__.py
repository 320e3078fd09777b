"""Clinical tables: lacova beside its peers (`study`), and pooled coefficients whose truth is known (`rubin`).

Some of the peers need more than lacova itself: `pip install 'lacova[peers]'`.
"""
