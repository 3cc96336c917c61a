"""Arrow types, casts and batches, and conversion of dataframes to Arrow."""
