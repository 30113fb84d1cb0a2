// Package v1alpha1 is elastic.iml.github.io/v1alpha1: ElasticJob and ScalePlan, as DLRover's users write them.
//
// The schema is the union of the three that DLRover has shipped, so that a manifest for any of them is taken: fields
// of an older one that mean nothing any more are read and have no effect, and say so.
//
// +kubebuilder:object:generate=true
// +groupName=elastic.iml.github.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of all kinds in this package.
var GroupVersion = schema.GroupVersion{Group: "elastic.iml.github.io", Version: "v1alpha1"}

// AddToScheme adds the kinds of this package to a scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &ElasticJob{}, &ElasticJobList{}, &ScalePlan{}, &ScalePlanList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
