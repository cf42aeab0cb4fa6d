"""Tables: CSV and Parquet files and DataFrames, as blocks of typed columns that a schema turns into numbers."""
