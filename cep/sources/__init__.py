"""Sources of records. Kafka and files, as Arrow record batches of still undecoded bytes."""
