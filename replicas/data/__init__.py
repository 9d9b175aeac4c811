"""From named packages and local folders to a corpus, token shards and deterministic mixture batches."""
