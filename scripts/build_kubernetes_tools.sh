#!/bin/sh
# Build what the tests of the manifests for Kubernetes need:
#
#   scripts/build_kubernetes_tools.sh   a no-op when it is there
#
#   .cache/tools/bin/kustomize          renders them
#   .cache/tools/crds-VERSION           the schemas of the Prometheus operator's resources
#
# Needs Go; both come from the Go module proxy. About a minute on two cores the first time.
set -eu

kustomize=v5.8.1
operator=v0.85.0

tools="$(cd "$(dirname "$0")/.." && pwd)/.cache/tools"
schemas="$tools/crds-$operator"

if [ ! -x "$tools/bin/kustomize" ] || [ ! -d "$schemas" ]; then
    command -v go >/dev/null || {
        echo "build_kubernetes_tools: Go is needed (on Debian: apt-get install golang-go), 1.24 or newer" >&2
        exit 1
    }
fi
mkdir -p "$tools/bin"
if [ ! -x "$tools/bin/kustomize" ]; then
    GOBIN="$tools/bin" go install -ldflags '-s -w' -trimpath "sigs.k8s.io/kustomize/kustomize/v5@$kustomize"
    echo "$tools/bin/kustomize"
fi
if [ ! -d "$schemas" ]; then
    module=github.com/prometheus-operator/prometheus-operator
    go mod download "$module@$operator"
    folder=$(go env GOMODCACHE)/$module@$operator/example/prometheus-operator-crd
    mkdir "$schemas.new"
    cp "$folder"/*podmonitors.yaml "$folder"/*prometheusrules.yaml "$schemas.new"
    chmod u+w "$schemas.new"/*
    mv "$schemas.new" "$schemas"
    echo "$schemas"
fi
