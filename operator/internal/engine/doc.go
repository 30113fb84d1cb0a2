// Package engine decides what becomes of a job's pods.
//
// It is pure: Decide is a function of what was observed, what is wanted, the policy and the time, and each of its
// actions carries its reason. It knows no client, no clock and no kind of job; adapters translate to and from it.
//
// Words. A role has ranks 0 to replicas-1. A rank is held by one pod after another; each pod has an id that its role
// never gives out twice. What a pod's end costs depends on its Class. What must outlive pods and operator is Memory: it
// only ever grows by merging, so that working from an old copy, or doing a step again, counts nothing twice.
package engine
