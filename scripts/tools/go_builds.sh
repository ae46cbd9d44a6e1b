# What all builds of tools in Go have in common; the scripts that build them read it.
#
# Nothing for debuggers: the symbol tables would double the size of the files, and what DWARF needs is a fifth of the time in
# which packages are compiled.
export GOFLAGS="-mod=mod -buildvcs=false -trimpath -gcflags=all=-dwarf=false '-ldflags=-s -w'"
