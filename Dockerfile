# The environment of a cluster's nodes as an image: for `docker:` cluster files and Kubernetes (docs/cluster.md).
#
#   docker build -t REGISTRY/search:0.1.0 . && docker push REGISTRY/search:0.1.0
FROM nvidia/cuda:13.0.0-base-ubuntu24.04

# rsync and ssh: `ray up` and its head; wget: KubeRay's probes; gcc: kernels that torch and triton compile.
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        ca-certificates gcc libc6-dev openssh-client python3.12-dev python3.12-venv rsync wget \
    && rm -rf /var/lib/apt/lists/*

USER ubuntu
WORKDIR /home/ubuntu
ENV PATH=/home/ubuntu/venv/bin:$PATH RAY_USAGE_STATS_ENABLED=0

# The lock first: a layer of some GB that stays while the project changes.
COPY --chown=ubuntu:ubuntu cluster.lock project/cluster.lock
RUN python3.12 -m venv venv && venv/bin/pip install --no-cache-dir -r project/cluster.lock

COPY --chown=ubuntu:ubuntu . project
RUN venv/bin/pip install --no-cache-dir --no-deps -e project && venv/bin/pip check
