"""Methods that send something about single private samples."""
