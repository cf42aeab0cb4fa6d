"""Methods that send the parameters of models: not black-box."""
