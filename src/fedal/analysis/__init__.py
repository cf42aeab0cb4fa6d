"""`fedal analyse`: a run folder is put together again and measured."""
