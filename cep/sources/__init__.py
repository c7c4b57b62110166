"""Where records come from. Kafka and files, as Arrow record batches of still undecoded bytes."""
