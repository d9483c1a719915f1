"""The platform on one machine: the domain's decisions carried out with processes instead of pods."""
