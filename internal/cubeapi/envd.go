package cubeapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime/multipart"
	"net/http"
)

// fromImageForm submits a build with the agent that its sandboxes get.
func (c *Client) fromImageForm(ctx context.Context, r FromImageRequest, out any) error {
	body := &bytes.Buffer{}
	form := multipart.NewWriter(body)
	part, err := form.CreateFormField("request")
	if err == nil {
		err = json.NewEncoder(part).Encode(r)
	}
	if err == nil {
		part, err = form.CreateFormFile("envd", "envd")
	}
	if err == nil {
		_, err = io.WriteString(part, r.Envd)
	}
	if err = errors.Join(err, form.Close()); err != nil {
		return err
	}
	answer, err := c.request(ctx, http.MethodPost, PathFromImage, body, form.FormDataContentType())
	if err != nil {
		return err
	}
	return errors.Join(json.NewDecoder(answer.Body).Decode(out), answer.Body.Close())
}
