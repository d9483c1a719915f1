"""A Kubernetes cluster on one machine: the real control plane as processes, pods as processes in namespaces.

``cluster.bringup`` starts and ends it, ``cluster.node`` is the program that plays a kubelet; e2e/README.md draws both.
"""
