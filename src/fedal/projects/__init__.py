"""Small working projects that `fedal init` writes: data, a federation.toml, a file with models and a README."""
