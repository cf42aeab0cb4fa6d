"""Methods that send means over the private samples of a class."""
