"""How every program of Sapwood writes its log."""
