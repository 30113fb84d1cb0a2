package v1alpha1

import (
	"bytes"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// PodTemplate is a pod template whose metadata may hold numbers and booleans where Kubernetes wants texts.
type PodTemplate struct {
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	Metadata TemplateMeta `json:"metadata,omitempty"`

	Spec corev1.PodSpec `json:"spec,omitempty"`
}

// TemplateMeta is what of a template's metadata reaches its pods.
type TemplateMeta struct {
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// UnmarshalJSON takes numbers and booleans for their text. DLRover's guide for gang scheduling has an annotation
// "min-available: 4".
func (m *TemplateMeta) UnmarshalJSON(data []byte) error {
	var loose struct {
		Labels      map[string]any `json:"labels"`
		Annotations map[string]any `json:"annotations"`
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber() // 1e6 and 20-digit numbers stay as they are written
	if err := decoder.Decode(&loose); err != nil {
		return fmt.Errorf("template.metadata: %w", err)
	}
	var err error
	if m.Labels, err = texts("labels", loose.Labels); err != nil {
		return err
	}
	m.Annotations, err = texts("annotations", loose.Annotations)
	return err
}

func texts(field string, loose map[string]any) (map[string]string, error) {
	if loose == nil {
		return nil, nil
	}
	strict := make(map[string]string, len(loose))
	for key, value := range loose {
		switch value := value.(type) {
		case nil:
			strict[key] = ""
		case string:
			strict[key] = value
		case bool, json.Number:
			strict[key] = fmt.Sprint(value)
		default:
			return nil, fmt.Errorf("template.metadata.%s[%s]: expected a text, a number or a boolean, not %s",
				field, key, kindOf(value))
		}
	}
	return strict, nil
}

func kindOf(value any) string {
	if _, list := value.([]any); list {
		return "a list"
	}
	return "an object"
}
