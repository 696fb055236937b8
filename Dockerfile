# Training in a container.
#
#   docker build --tag minigpt .
#   docker run --rm --volume minigpt-runs:/minigpt/runs --volume minigpt-cache:/minigpt/data/cache minigpt
#   docker run … minigpt model=small                     settings, as for train.py
#   docker run … --volume "$PWD":/text:ro minigpt data=text data.path=/text/my.txt
#   docker run … --gpus all minigpt                      on the machine's GPUs
#   docker run … --entrypoint /minigpt/.venv/bin/python minigpt generate.py
#
# The torch of the lock comes from PyPI, whose wheel for x86-64 Linux holds CUDA: --gpus all needs
# the NVIDIA driver and container toolkit on the host, and nothing more in here.
FROM python:3.11-slim

# make: the environment is made as everywhere; g++: compile=true compiles C++
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ make \
    && rm -rf /var/lib/apt/lists/*

RUN useradd --create-home minigpt && install --directory --owner=minigpt --group=minigpt /minigpt
USER minigpt
WORKDIR /minigpt

# Before the code, so that a change of the code alone does not install everything again.
COPY --chown=minigpt:minigpt Makefile requirements.lock ./
RUN PIP_NO_CACHE_DIR=1 make env

COPY --chown=minigpt:minigpt . .

# Made here, so that a new volume belongs to the user as well.
RUN mkdir -p runs data/cache
VOLUME ["/minigpt/runs", "/minigpt/data/cache"]

ENTRYPOINT ["/minigpt/.venv/bin/python", "/minigpt/train.py"]
