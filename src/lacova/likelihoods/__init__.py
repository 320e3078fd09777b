"""p(y | z): the observation families, patients' random effects, and models of missingness."""
