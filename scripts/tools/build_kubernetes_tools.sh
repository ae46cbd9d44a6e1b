#!/bin/sh
# Build what the tests of the manifests for Kubernetes need:
#
#   scripts/tools/build_kubernetes_tools.sh   a no-op when it is there
#
#   .cache/tools/bin/kustomize, helm    render them
#   .cache/tools/bin/kube-apiserver     takes them, with etcd beside it
#   .cache/tools/bin/kubectl            by which a reader applies them
#   .cache/tools/crds-VERSION           the schemas of the Prometheus operator's resources
#   .cache/tools/jobset-VERSION, pytorchjob-VERSION    those of jobs
#
# Needs Go; all but etcd, which is Debian's, come from the Go module proxy. Six minutes on two cores the first time.
set -eu

kustomize=v5.8.1
helm=v3.22.0
kubernetes=1.36.3
operator=v0.85.0
jobset=v0.10.1
training=v1.8.1

root=$(cd "$(dirname "$0")/../.." && pwd)
tools="$root/.cache/tools"
. "$root/scripts/tools/go_builds.sh"
mkdir -p "$tools/bin"
work=$(mktemp -d "$tools/kubernetes.XXXXXX")
trap 'rm -rf "$work"' EXIT

fail() {
    echo "build_kubernetes_tools: $1" >&2
    exit 1
}

go_is_needed() {
    command -v go >/dev/null || fail "Go is needed (on Debian: apt-get install golang-go), 1.24 or newer"
}

install() {
    [ ! -x "$tools/bin/$1" ] || return 0
    go_is_needed
    GOBIN="$tools/bin" go install "$2"
    echo "$tools/bin/$1"
}

install kustomize "sigs.k8s.io/kustomize/kustomize/v5@$kustomize"
install helm "helm.sh/helm/v3/cmd/helm@$helm"

# schemas FOLDER MODULE@VERSION FILE ...: custom resources, as the modules of their controllers have them.
schemas() {
    folder="$tools/$1"
    module=$2
    shift 2
    [ ! -d "$folder" ] || return 0
    go_is_needed
    go mod download "$module"
    mkdir "$work/schemas"
    for file in "$@"; do
        cp "$(go env GOMODCACHE)/$module/$file" "$work/schemas"
    done
    chmod u+w "$work"/schemas/*
    mv "$work/schemas" "$folder"
    echo "$folder"
}

monitoring=example/prometheus-operator-crd/monitoring.coreos.com
schemas "crds-$operator" "github.com/prometheus-operator/prometheus-operator@$operator" \
    "${monitoring}_podmonitors.yaml" "${monitoring}_prometheusrules.yaml"

# Its own module replaces each module that lives in its tree by a folder: here by the release of the same day.
lacking=
for program in kube-apiserver kubectl; do
    [ -x "$tools/bin/$program" ] || lacking="$lacking $program"
done
if [ -n "$lacking" ]; then
    go_is_needed
    cd "$work"
    go mod init laggard.test/kubernetes 2>/dev/null
    go mod download "k8s.io/kubernetes@v$kubernetes"
    go mod edit -json "$(go env GOMODCACHE)/cache/download/k8s.io/kubernetes/@v/v$kubernetes.mod" |
        sed -n 's|^.*"Path": "\./staging/src/\(.*\)".*$|\1|p' | sort -u |
        while read -r module; do
            go mod edit -replace "$module=$module@v0${kubernetes#1}"
        done
    printf 'package tools\n\nimport _ "k8s.io/kubernetes/cmd/kube-apiserver/app"\n' >tools.go
    go mod edit -require "k8s.io/kubernetes@v$kubernetes"
    for program in $lacking; do
        go build -o "$program" \
            -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=v$kubernetes" "k8s.io/kubernetes/cmd/$program"
        mv "$program" "$tools/bin"
        echo "$tools/bin/$program"
    done
fi

if [ ! -x "$tools/bin/etcd" ] && ! command -v etcd >/dev/null; then
    cd "$work"
    apt-get -qq -o APT::Sandbox::User= download etcd-server || fail "install etcd and put it on PATH"
    dpkg-deb --extract ./*.deb unpacked
    mv unpacked/usr/bin/etcd "$tools/bin"
    echo "$tools/bin/etcd"
fi

schemas "jobset-$jobset" "sigs.k8s.io/jobset@$jobset" config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml
schemas "pytorchjob-$training" "github.com/kubeflow/training-operator@$training" \
    manifests/base/crds/kubeflow.org_pytorchjobs.yaml
