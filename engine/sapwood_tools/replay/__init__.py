"""`sapwood replay`: real requests through the gateway's decisions and the engine's cache, in virtual time."""
