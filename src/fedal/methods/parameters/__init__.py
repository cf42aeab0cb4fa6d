"""Methods that send model parameters: not black-box."""
