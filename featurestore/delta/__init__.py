"""Reading and writing of Delta logs."""
