// Fills a Modelfile's template as Ollama does: with messages, those of one role that follow each other as one, and with
// the text of all system messages.
package main

import (
	"encoding/json"
	"os"
	"strings"
	"text/template"
)

type message struct{ Role, Content string }

type job struct {
	Template string
	Talks    [][]message
}

func collate(talk []message) (string, []message) {
	var system []string
	var messages []message
	for _, turn := range talk {
		if turn.Role == "system" {
			system = append(system, turn.Content)
		}
		last := len(messages) - 1
		if last >= 0 && messages[last].Role == turn.Role {
			messages[last].Content += "\n\n" + turn.Content
		} else {
			messages = append(messages, turn)
		}
	}
	return strings.Join(system, "\n\n"), messages
}

func main() {
	var jobs []job
	if err := json.NewDecoder(os.Stdin).Decode(&jobs); err != nil {
		panic(err)
	}
	var texts [][]string
	for _, job := range jobs {
		parsed := template.Must(template.New("").Parse(job.Template))
		var rendered []string
		for _, talk := range job.Talks {
			var text strings.Builder
			system, messages := collate(talk)
			values := map[string]any{"System": system, "Messages": messages, "Response": ""}
			if err := parsed.Execute(&text, values); err != nil {
				panic(err)
			}
			rendered = append(rendered, text.String())
		}
		texts = append(texts, rendered)
	}
	json.NewEncoder(os.Stdout).Encode(texts)
}
