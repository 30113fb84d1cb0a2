package elasticjob

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"phalanx/operator/api/v1alpha1"
)

func TestNumbersInATemplatesMetadata(t *testing.T) {
	var meta v1alpha1.TemplateMeta
	text := `{"annotations":{"n":4,"big":12345678901234567890,"yes":true,"s":"x","none":null},` +
		`"labels":{"l":1.50},"name":"x"}`
	if err := json.Unmarshal([]byte(text), &meta); err != nil {
		t.Fatal(err)
	}
	want := v1alpha1.TemplateMeta{
		Labels: map[string]string{"l": "1.50"},
		Annotations: map[string]string{
			"n": "4", "big": "12345678901234567890", "yes": "true", "s": "x", "none": "",
		},
	}
	if diff := cmp.Diff(want, meta); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	err := json.Unmarshal([]byte(`{"labels":{"l":["a"]}}`), &meta)
	if err == nil || !strings.Contains(err.Error(), "labels[l]: expected a text, a number or a boolean") {
		t.Errorf("got %v", err)
	}
}
