"""Covariates with gaps: the space they live in, beliefs about them, and expectations under those beliefs."""
