"""What Sapwood's programs promise each other; standard library only, everyone may import it."""
