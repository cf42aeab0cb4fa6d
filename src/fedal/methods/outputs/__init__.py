"""Methods that send nothing but outputs on public samples and gradients w.r.t. them."""
