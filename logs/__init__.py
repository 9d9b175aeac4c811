"""Every training log read into one honest table.

`schema` the `Run` that all packages share; `readers` one module per file format, found by content, over what
they share in `parsing`; `splice` forks, resumes and duplicates to one lineage; `catalogue` cited facts of public runs;
`ingest` files to runs; `pull` public runs from W&B, over `wandb_client`; `store` runs on disk; `summary` a
run in numbers; `export` runs for other tools; `published` the figures carried here.
"""
