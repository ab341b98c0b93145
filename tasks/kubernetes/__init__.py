"""Jobs in a Kubernetes cluster: plain Jobs, and RayJobs of KubeRay. Nothing else in the project knows of Kubernetes."""
