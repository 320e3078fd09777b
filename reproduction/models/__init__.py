"""The models of the family, side by side on the same tables."""
