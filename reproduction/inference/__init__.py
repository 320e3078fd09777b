"""Worlds with known truth, which judge what people do with the answers: pooled regressions, intervals and effects."""
