"""Records in Avro and Protobuf, with the schemas of a registry or of a file."""
