// Package operator is the root of Phalanx's Kubernetes operator. go generate here writes what is made from the types of
// api and the markers of internal: deep copies, custom resource definitions and the operator's role; the last two also
// for the chart, which can only read files of its own.
package operator

//go:generate go tool controller-gen object paths=./api/...
//go:generate go tool controller-gen crd:maxDescLen=0 paths=./api/... output:crd:dir=config/crd
//go:generate go tool controller-gen rbac:roleName=phalanx-operator paths=./internal/... output:rbac:dir=config/rbac
//go:generate go tool controller-gen crd:maxDescLen=0 paths=./api/... output:crd:dir=../charts/phalanx/files/crds
//go:generate go tool controller-gen rbac:roleName=phalanx-operator paths=./internal/... output:rbac:dir=../charts/phalanx/files/rbac
