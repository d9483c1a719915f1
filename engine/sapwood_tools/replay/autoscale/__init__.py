"""`sapwood replay --autoscale`: a trace over replicas whose number an autoscaler decides, in virtual time."""
