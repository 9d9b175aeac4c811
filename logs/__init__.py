"""Every training log read into one honest table.

`schema` the `Run` that all packages share; `readers` one module per file format, found by content, over what
they share in `parsing`; `splice` forks, resumes and duplicates to one lineage; `catalogue` cited facts of public runs;
`ingest` files to runs, their `tokens` filled in from steps; `pull` public runs from W&B, as `wandb_fetch` gets
them over `wandb_client`; `store` runs on disk, each an `atomic_folder`; `summary` a run in numbers, shown on the
`terminal`; `export` runs for other tools; `published` the figures carried here.
"""
