#!/bin/sh
# Install packages into a virtual environment as pip does, in a tenth of the time.
#
#   scripts/tools/install.sh ENVIRONMENT --constraint constraints.txt --editable '.[otel]'
#
# uv reads no settings of pip. Where it does not get through, as to an index that only pip knows of, pip installs them.
set -eu

python="$1/bin/python"
shift
{
    "$python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv &&
        "$python" -m uv pip install --quiet --system-certs --python "$python" "$@"
} || {
    echo "install: uv failed, so pip does it" >&2
    "$python" -m pip install --quiet --disable-pip-version-check "$@"
}
