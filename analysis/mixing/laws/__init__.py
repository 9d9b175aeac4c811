"""One mixing law per module, each with a `LAW`; adding the file is all it takes."""
