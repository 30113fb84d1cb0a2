package chart

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

const chartFolder = "../../../charts/phalanx"

// TestTheTableOfOptions: the page has each option of values.yaml, with its default, and no other.
func TestTheTableOfOptions(t *testing.T) {
	page, err := os.ReadFile("../../../docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(page), "| option | default | what it does |\n|---|---|---|\n")
	table, _, ended := strings.Cut(table, "\n\n")
	if !found || !ended {
		t.Fatal("docs/kubernetes.md has no table of options")
	}
	row := regexp.MustCompile("^\\| `([^`]+)` \\| (?:`([^`]*)` )?\\| ")
	written := map[string]any{}
	for _, line := range strings.Split(table, "\n") {
		match := row.FindStringSubmatch(line)
		if match == nil {
			t.Fatalf("not as the others: %s", line)
		}
		var value any
		if err := yaml.Unmarshal([]byte(match[2]), &value); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		written[match[1]] = value
	}
	text, err := os.ReadFile(chartFolder + "/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.UnmarshalStrict(text, &values); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(options("", values, written), written); diff != "" {
		t.Errorf("(-values.yaml +docs/kubernetes.md):\n%s", diff)
	}
}

// options are the values by their whole names, down to what the page names or what has no parts.
func options(prefix string, values map[string]any, named map[string]any) map[string]any {
	found := map[string]any{}
	for key, value := range values {
		name := prefix + key
		parts, isMap := value.(map[string]any)
		if _, whole := named[name]; isMap && len(parts) > 0 && !whole {
			for part, below := range options(name+".", parts, named) {
				found[part] = below
			}
			continue
		}
		if value == "" { // the table leaves it empty
			value = nil
		}
		found[name] = value
	}
	return found
}
