"""Files and DataFrames of any library: CSV, Parquet, and one file of tensors and JSON."""
