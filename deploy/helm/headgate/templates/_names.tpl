{{- define "headgate.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 53 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 53 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "headgate.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "headgate.labels" -}}
{{ include "headgate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "headgate.secret" -}}
{{ .Values.secret.existing | default (include "headgate.name" .) }}
{{- end }}

{{- define "headgate.region" -}}
{{ .Values.region.existing | default (printf "%s-region" (include "headgate.name" .)) }}
{{- end }}

{{- /* How a pod is asked how it is: by the kubelet; where clients need certificates, which it has none of, by the pod itself. */ -}}
{{- define "headgate.probe" -}}
{{- $values := (index . 0).Values }}{{ $path := index . 1 -}}
{{- if and $values.tls.mutual $values.tls.clientSecret -}}
exec:
  command:
    - python
    - -c
    - |
      import http.client, ssl
      tls = ssl.create_default_context(cafile="/etc/headgate/tls/ca.crt")
      tls.check_hostname = False  # it is this pod
      tls.load_cert_chain("/etc/headgate/client/tls.crt", "/etc/headgate/client/tls.key")
      connection = http.client.HTTPSConnection("127.0.0.1", 8080, timeout=1, context=tls)
      connection.request("GET", "{{ $path }}")
      raise SystemExit(connection.getresponse().status != 200)
{{- else if $values.tls.mutual -}}
tcpSocket: { port: http }
{{- else -}}
httpGet: { path: {{ $path }}, port: http, scheme: {{ ternary "HTTPS" "HTTP" (not (empty $values.tls.secret)) }} }
{{- end -}}
{{- end }}
