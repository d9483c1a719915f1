"""One compiled function that runs a whole step of a dense decoder on the CPU."""
