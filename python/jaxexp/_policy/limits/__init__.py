"""What is found, compared with a policy's fields: the words of a `PolicyError` come from here."""
