"""The node agent: plays a kubelet towards the API server; its containers are processes of this machine.

``agent`` watches the node's pods and gives each a ``pod.PodWorker``; that makes the ``sandbox`` (network), the
``volumes``, and a ``container.ContainerWorker`` for each container, which ``probes`` watches. What the worker sees
becomes the pod's ``status``. ``environment``, ``images``, ``addresses``, ``probes`` (the judging) and ``status`` are
pure.
"""
