package v1alpha1

import (
	"k8s.io/apimachinery/pkg/util/json"
)

// One object that does not decode would fail each list of its kind, and so stop the operator for the whole cluster. The
// definitions refuse most of what does not fit, but not all: metadata of a template is anybody's, and some texts look
// like a quantity and are none. So decoding does not fail: what is wrong becomes a sentence for the user.

// UnmarshalJSON reads a job. Of one that does not fit it keeps metadata and status, and says so in Malformed.
func (j *ElasticJob) UnmarshalJSON(data []byte) error {
	type plain ElasticJob // without this method
	err := json.Unmarshal(data, (*plain)(j))
	if err == nil {
		j.Malformed = ""
		return nil
	}
	*j = ElasticJob{Malformed: err.Error()}
	return keep(data, map[string]any{
		"kind": &j.Kind, "apiVersion": &j.APIVersion, "metadata": &j.ObjectMeta, "status": &j.Status,
	})
}

// UnmarshalJSON reads a plan. Of one that does not fit it keeps metadata and status, and says so in Malformed.
func (p *ScalePlan) UnmarshalJSON(data []byte) error {
	type plain ScalePlan
	err := json.Unmarshal(data, (*plain)(p))
	if err == nil {
		p.Malformed = ""
		return nil
	}
	*p = ScalePlan{Malformed: err.Error()}
	return keep(data, map[string]any{
		"kind": &p.Kind, "apiVersion": &p.APIVersion, "metadata": &p.ObjectMeta, "status": &p.Status,
	})
}

// keep reads those fields of an object that can be read. It fails where the object is none at all.
func keep(data []byte, fields map[string]any) error {
	var texts map[string]rawText
	if err := json.Unmarshal(data, &texts); err != nil {
		return err
	}
	for name, field := range fields {
		if text := texts[name]; text != nil {
			json.Unmarshal(text, field) //nolint:errcheck // the sentence says what is wrong
		}
	}
	return nil
}

// rawText is a value as it is written.
type rawText []byte

func (t *rawText) UnmarshalJSON(data []byte) error {
	*t = append((*t)[:0], data...)
	return nil
}
