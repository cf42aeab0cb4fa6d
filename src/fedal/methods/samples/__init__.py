"""Methods that send information about individual private samples."""
