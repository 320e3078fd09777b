"""Missing covariates: their prior p(x), their posterior q(x_u | ·), and expectations over them."""
