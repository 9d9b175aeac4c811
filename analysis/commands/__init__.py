"""The commands of this package, one module each: options in, a JSON document or a table out."""
